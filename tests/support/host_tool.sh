#!/bin/sh
# A stand-in for g++, gcc, as or ld, by the name it is installed under (`nvcc_journal.make_host`):
# it answers what tilusbuild asks of a host compiler, with headers of its own, so that they are
# looked through in no time; keeps the objects that the real gcc makes of a file; and takes the
# faults of the folder `misbehave` beside it, by its name, as nvcc_journal.cc does.
here=${0%/*} name=${0##*/} last= output= PATH=/usr/bin:/bin
for word; do
  [ "$last" = -o ] && output=$word
  last=$word
done

for fault in "$here"/misbehave/*-"$name"-*; do
  [ -e "$fault" ] || break
  case "$*" in --version | -dump* | -print* | -E*) break ;; esac
  text=$(cat "$fault" 2>/dev/null)
  rm "$fault" 2>/dev/null || continue
  case $fault in
    *-say) echo "$text" >&2; exit 1 ;;
    *-empty) : >"$output"; exit 0 ;;
    *-text) echo "not an object" >"$output"; exit 0 ;;
    *-no-output) exit 0 ;;
    *-signal-*) kill -"${fault##*-}" $$; exit 3 ;;
  esac
done

case "$name $*" in
  *' -dumpfullversion '*) echo 12.2.0 ;;
  *' -dumpmachine') echo "$(uname -m)-linux-gnu" ;;
  *' -print-prog-name=as') echo "$here/as" ;;
  *' -print-prog-name=ld') echo "$here/ld" ;;
  *' -print-'*=*) echo "${1#*=}" ;;
  *' -E '*)
    echo '#include <...> search starts here:'
    echo " $here/own"
    echo " $here/system"
    echo 'End of search list.'
    ;;
  g++\ *-c* | gcc\ *-c*)
    for source; do case $source in *.c) break ;; esac; done
    kept=$here/kept/$(cksum <"$source" | tr ' ' -)
    if [ ! -e "$kept" ]; then
      "/usr/bin/$name" "$@" || exit
      cp "$output" "$kept.$$" && mv "$kept.$$" "$kept"
    else
      cp "$kept" "$output"
    fi
    ;;
  *) exec "/usr/bin/$name" "$@" ;;
esac

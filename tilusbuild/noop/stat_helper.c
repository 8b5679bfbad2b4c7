/* Whether files are as a no-op record says: what `record._group_unchanged` does, in C.
 *
 * It exists for builds of 100,000 entries with nothing to do: half of their time would be Python's.
 * Compiled once by the host's compiler (tilusbuild/builder/noop_record.py), loaded by stat_helper.py.
 * It reads what it is given, calls `stat`, and keeps nothing.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int64_t nanoseconds(struct timespec time) {
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* `seen` is size, mtime, ctime, inode; the size is -1 where there was nothing. */
static int is_same(int directory, const char *path, const int64_t seen[4]) {
  struct stat found;
  if (fstatat(directory, path, &found, 0) != 0) return seen[0] == -1;
  return (S_ISDIR(found.st_mode) || found.st_size == seen[0]) &&
         nanoseconds(found.st_mtim) == seen[1] && nanoseconds(found.st_ctim) == seen[2] &&
         (int64_t)found.st_ino == seen[3];
}

/* Whether a word of `size` bytes has, with each ending, the stamps that follow at `stats`. */
static int all_same(int directory, const char *word, size_t size, const char *endings,
                    const char **stats) {
  char path[4096];
  memcpy(path, word, size);
  for (;;) {
    int64_t seen[4];
    size_t length = strcspn(endings, "\1");
    if (size + length >= sizeof path) return 0;
    memcpy(path + size, endings, length);
    path[size + length] = 0;
    memcpy(seen, *stats, sizeof seen);
    *stats += sizeof seen;
    if (!is_same(directory, path, seen)) return 0;
    if (!endings[length]) return 1;
    endings += length + 1;
  }
}

/* `names` are a directory ("" for none), endings with \1 between them, and words, each ended by a
 * zero byte and all of them by another; `stats` has four numbers for each word with each ending,
 * `count` in all. 1 when all are the same. */
int tilusbuild_same(const char *names, size_t size, const char *stats, size_t count) {
  const char *end = names + size;
  const char *endings = names + strlen(names) + 1;
  if (endings > end) return 0;
  const char *word = endings + strlen(endings) + 1;
  size_t each = 1;
  for (const char *at = endings; *at; at++) each += *at == 1;
  int directory = AT_FDCWD;
  if (*names && (directory = open(names, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) return 0;
  size_t done = 0;
  for (; done + each <= count && word <= end; done += each) {
    size_t length = strlen(word);
    if (length >= 4096 || !all_same(directory, word, length, endings, &stats)) break;
    word += length + 1;
  }
  if (directory != AT_FDCWD) close(directory);
  return done == count;
}

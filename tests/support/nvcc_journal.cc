// A stand-in for nvcc and the programs beside it: it takes the command lines that tilusbuild uses,
// answers in a few milliseconds, and keeps a journal, so that a test can say "compiled exactly
// once".
//
// What it makes is a function of the source, of the headers that the source includes from folders
// on the command line, and of the arguments, never of where anything is. A cubin is an ELF file
// with the symbols and attributes of the kernels that the source declares; it holds no real code.
//
// The journal is the file `journal` in the toolkit's folder, because a compile's environment is
// exact. Each compile appends one line when it starts:
//
//     MODE KEY WHAT          cubin 0123456789abcdef hang
//
// and one in the file `spans` beside it when it starts, and one when it ends by itself:
//
//     begin PID NICE MAKEFLAGS…
//     end PID
//
// KEY stands for everything that the output is made of, WHAT for how this compile will go. Comments
// in the source tell it to go otherwise than well:
//
//     // fake: fail                 an error at this line, status 1
//     // fake: crash                SIGSEGV
//     // fake: oom                  SIGKILL, as from the kernel when memory runs out
//     // fake: hang                 never ends, and neither does a child of it
//     // fake: no-output            status 0, and nothing made
//     // fake: torn                 status 0, and half of the output made
//     // fake: slow 0.2             takes so many seconds
//     // fake: meet 3               goes on when so many compiles have run at once; fails in a minute
//     // fake: noise 1000000        prints so many bytes first
//
// Faults that are not the program's come from beside it: each compile takes the first file of the
// folder `misbehave` in the toolkit, if there is one, and does as its name says after the dash
// (`001-crash`; the words above and those of `kFaults`). `say` prints the file's content and ends
// with status 1.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace {

using std::string;
using strings = std::vector<string>;

const char *const kRelease = "13.0";
const char *const kVersion = "13.0.88";
const char *const kArchs[] = {"75",   "80",   "86",   "87",   "88",   "89",   "90",  "90a",
                              "100",  "100f", "100a", "103",  "103f", "103a", "110", "110f",
                              "110a", "120",  "120f", "120a", "121",  "121f", "121a"};

struct Image {
  string arch;  // "90a"
  bool ptx;
};

struct Request {
  string mode, output, host_compiler = "g++";
  strings inputs, quoted_folders, folders, link_words;
  std::vector<Image> images;
  bool verbose = false;
  uint64_t key = 1469598103934665603ull;  // FNV-1a
};

const unsigned kRegisters = 32, kBarriers = 1;

void mix(Request &request, const string &bytes) {
  for (unsigned char c : bytes) request.key = (request.key ^ c) * 1099511628211ull;
  request.key = (request.key ^ 0x100) * 1099511628211ull;
}

bool starts_with(const string &text, const string &prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

[[noreturn]] void die(const string &message, int status) {
  fprintf(stderr, "%s\n", message.c_str());
  exit(status);
}

bool read_file(const string &path, string &content) {
  FILE *file = fopen(path.c_str(), "rb");
  if (!file) return false;
  content.clear();
  char buffer[65536];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, file)) > 0;) content.append(buffer, n);
  bool fine = !ferror(file);
  fclose(file);
  return fine;
}

void write_file(const string &path, const string &content) {
  FILE *file = fopen(path.c_str(), "wb");
  if (!file || fwrite(content.data(), 1, content.size(), file) != content.size() || fclose(file))
    die("nvcc fatal   : Could not write " + path + ": " + strerror(errno), 1);
}

string folder_of(const string &path) {
  size_t slash = path.rfind('/');
  return slash == string::npos ? "." : path.substr(0, slash);
}

string base_of(const string &path) { return path.substr(path.rfind('/') + 1); }

string toolkit() {
  char path[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length < 0 ? "." : folder_of(folder_of(string(path, length)));
}

bool is_word(char c) { return isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// ---- the command line ---------------------------------------------------------------------------

void add_gencode(Request &request, const string &text) {
  string codes = text.substr(text.find("code=") + 5);
  for (char &c : codes)
    if (c == '[' || c == ']' || c == ',') c = ' ';
  size_t at = 0;
  while (at < codes.size()) {
    size_t end = codes.find(' ', at);
    string code = codes.substr(at, end - at);
    if (starts_with(code, "sm_")) request.images.push_back({code.substr(3), false});
    if (starts_with(code, "compute_")) request.images.push_back({code.substr(8), true});
    if (end == string::npos) break;
    at = end + 1;
  }
}

void add_arch(Request &request, const string &name) {
  if (starts_with(name, "sm_")) request.images.push_back({name.substr(3), false});
  if (starts_with(name, "compute_")) request.images.push_back({name.substr(8), true});
}

Request parse(const strings &words) {
  Request request;
  for (size_t i = 0; i < words.size(); ++i) {
    const string &word = words[i];
    auto value = [&] { return i + 1 < words.size() ? words[++i] : string(); };
    if (word == "--jobserver" || starts_with(word, "--threads")) {
      if (word == "--threads") value();  // as with nvcc, these change nothing of what is made
    } else if (word == "-cubin" || word == "-fatbin" || word == "-ptx" || word == "-c" ||
        word == "-shared" || word == "--shared") {
      request.mode = word.substr(word.find_first_not_of('-'));
      mix(request, request.mode);
    } else if (word == "-o") {
      request.output = value();
    } else if (word == "-ccbin") {
      request.host_compiler = value();
    } else if (word == "-gencode") {
      string code = value();
      add_gencode(request, code);
      mix(request, code);
    } else if (word == "-arch" || starts_with(word, "-arch=")) {
      string arch = word == "-arch" ? value() : word.substr(6);
      add_arch(request, arch);
      mix(request, arch);
    } else if (word == "-I" || starts_with(word, "-I")) {
      request.folders.push_back(word == "-I" ? value() : word.substr(2));
    } else if (word == "-Xcompiler" || word == "-Xptxas" || word == "-Xcudafe" ||
               word == "-Xlinker" || word == "-cudart" || word == "-cudadevrt") {
      string given = value();
      if (word == "-Xcompiler" && given == "-iquote") {
        value();
        request.quoted_folders.push_back(value());
        continue;
      }
      if (word == "-Xptxas" && given == "-v") request.verbose = true;
      if (word == "-Xlinker") request.link_words.insert(request.link_words.end(), {word, given});
      mix(request, word + given);
    } else if (starts_with(word, "-l") && word != "-lineinfo") {
      request.link_words.push_back(word);
    } else if (starts_with(word, "-L")) {
      request.link_words.push_back(word);
    } else if (word[0] == '-') {
      mix(request, word);
    } else {
      request.inputs.push_back(word);
      request.link_words.push_back(word);
    }
  }
  for (const Image &image : request.images) {
    bool known = false;
    for (const char *arch : kArchs) known |= image.arch == arch;
    if (!known) die("nvcc fatal   : Unsupported gpu architecture 'sm_" + image.arch + "'", 1);
  }
  if (request.images.empty()) request.images.push_back({"75", false});
  return request;
}

// ---- the source ---------------------------------------------------------------------------------

void mix_includes(Request &request, const string &path, const string &text, std::set<string> &seen);

void mix_header(Request &request, const string &name, bool quoted, const string &includer,
                std::set<string> &seen) {
  strings candidates;
  if (quoted) {
    candidates.push_back(folder_of(includer) + "/" + name);
    for (const string &folder : request.quoted_folders) candidates.push_back(folder + "/" + name);
  }
  for (const string &folder : request.folders) candidates.push_back(folder + "/" + name);
  for (const string &path : candidates) {
    string text;
    if (!read_file(path, text)) continue;
    mix(request, name);
    mix(request, text);
    if (seen.insert(path).second) mix_includes(request, path, text, seen);
    return;
  }
  if (quoted)
    die(base_of(includer) + "(1): fatal error: " + name + ": No such file or directory", 1);
}

void mix_includes(Request &request, const string &path, const string &text,
                  std::set<string> &seen) {
  for (size_t at = 0; (at = text.find("#include", at)) != string::npos;) {
    at = text.find_first_not_of(" \t", at + 8);
    if (at == string::npos) return;
    if (text[at] != '"' && text[at] != '<') continue;
    size_t end = text.find(text[at] == '"' ? '"' : '>', at + 1);
    if (end == string::npos) return;
    mix_header(request, text.substr(at + 1, end - at - 1), text[at] == '"', path, seen);
  }
}

bool marked(const string &source, const string &name, string *value = nullptr) {
  string mark = "// fake: " + name;
  for (size_t at = 0; (at = source.find(mark, at)) != string::npos; ++at) {
    size_t after = at + mark.size();
    if (after < source.size() && (is_word(source[after]) || source[after] == '-')) continue;
    if (value) {
      size_t start = source.find_first_not_of(" \t", after);
      size_t end = source.find_first_of(" \t\r\n", start);
      *value = start == string::npos ? "" : source.substr(start, end - start);
    }
    return true;
  }
  return false;
}

double number(const string &source, const char *name, double otherwise) {
  string value;
  return marked(source, name, &value) ? atof(value.c_str()) : otherwise;
}

// The name that is declared after `at`: the last word before a parenthesis that is no attribute's.
string declared(const string &text, size_t at) {
  string word;
  while (at < text.size() && text[at] != ';' && text[at] != '{') {
    if (is_word(text[at])) {
      size_t end = at;
      while (end < text.size() && is_word(text[end])) ++end;
      word = text.substr(at, end - at);
      at = end;
    } else if (text[at] == '(') {
      if (!starts_with(word, "__")) return word;
      int depth = 0;
      do {
        depth += text[at] == '(' ? 1 : text[at] == ')' ? -1 : 0;
        ++at;
      } while (at < text.size() && depth > 0);
    } else {
      ++at;
    }
  }
  return "";
}

strings kernels(const string &source) {
  strings names;
  auto add = [&](const string &name) {
    for (const string &known : names)
      if (known == name) return;
    if (!name.empty()) names.push_back(name);
  };
  for (const char *mark : {"__global__", ".entry"})
    for (size_t at = 0; (at = source.find(mark, at)) != string::npos;) {
      at += strlen(mark);
      add(declared(source, at));
    }
  return names;
}

strings host_functions(const string &source) {
  strings names;
  for (size_t at = 0; (at = source.find("extern \"C\"", at)) != string::npos;) {
    at += 10;
    size_t end = source.find_first_of("({;", at);
    if (end == string::npos || source.substr(at, end - at).find("__global__") != string::npos)
      continue;
    string name = declared(source, at);
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

// ---- what is made -------------------------------------------------------------------------------

void put(string &out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

struct Section {
  string name;
  uint32_t kind;
  uint64_t flags;
  string content;
  uint32_t link, info;
  uint64_t entry;
};

string cubin(const Request &request, const strings &names, const string &arch) {
  unsigned number = atoi(arch.c_str());
  string symbol_names(1, '\0'), symbols(24, '\0'), info;
  std::vector<Section> sections = {{"", 0, 0, "", 0, 0, 0},
                                   {".shstrtab", 3, 0, "", 0, 0, 0},
                                   {".strtab", 3, 0, "", 0, 0, 0},
                                   {".symtab", 2, 0, "", 2, 1, 24}};
  for (size_t i = 0; i < names.size(); ++i) {
    uint32_t index = i + 1;
    string code;
    uint64_t state = request.key ^ number;
    for (int word = 0; word < 16; ++word) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      put(code, state, 8);
    }
    put(symbols, symbol_names.size(), 4);
    put(symbols, 0x12, 1);  // global function
    put(symbols, 0x10, 1);  // kernel
    put(symbols, sections.size(), 2);
    put(symbols, 0, 8);
    put(symbols, code.size(), 8);
    symbol_names += names[i] + '\0';
    sections.push_back({".text." + names[i], 1, 6 | (uint64_t)kBarriers << 20, code, 3,
                        kRegisters << 24 | index, 0});
    for (auto pair : {std::pair<int, unsigned>{0x2f, kRegisters}, {0x11, 0}, {0x12, 0}}) {
      put(info, 4, 1);
      put(info, pair.first, 1);
      put(info, 8, 2);
      put(info, index, 4);
      put(info, pair.second, 4);
    }
  }
  string note = "fake ptxas -arch sm_" + arch + " " + '\0';
  sections.push_back({".nv.info", 0x70000000, 0, info, 3, 0, 0});
  sections.push_back({".note.nv.tkinfo", 7, 0, note, 0, 0, 0});
  sections[2].content = symbol_names;
  sections[3].content = symbols;
  std::vector<size_t> name_offsets;
  for (const Section &section : sections) {
    name_offsets.push_back(sections[1].content.size());
    sections[1].content += section.name + '\0';
  }
  string body, table;
  for (size_t i = 0; i < sections.size(); ++i) {
    Section &section = sections[i];
    while (body.size() % 16) body.push_back('\0');
    put(table, name_offsets[i], 4);
    put(table, section.kind, 4);
    put(table, section.flags, 8);
    put(table, 0, 8);
    put(table, i ? 64 + body.size() : 0, 8);
    put(table, section.content.size(), 8);
    put(table, section.link, 4);
    put(table, section.info, 4);
    put(table, i ? 1 : 0, 8);
    put(table, section.entry, 8);
    body += section.content;
  }
  while (body.size() % 16) body.push_back('\0');
  string elf("\x7f" "ELF\x02\x01\x01\x33\x08\0\0\0\0\0\0\0", 16);
  put(elf, 2, 2);
  put(elf, 190, 2);
  put(elf, 1, 4);
  put(elf, 0, 8);
  put(elf, 0, 8);
  put(elf, 64 + body.size(), 8);
  put(elf, number << 8 | (arch.back() == 'a' ? 8 : 0), 4);
  for (int field : {64, 56, 0, 64, static_cast<int>(sections.size()), 1}) put(elf, field, 2);
  return elf + body + table;
}

string ptx(const Request &request, const strings &names, const string &arch) {
  string text = "// " + std::to_string(request.key) + "\n.version 9.0\n.target sm_" + arch +
                "\n.address_size 64\n";
  for (const string &name : names) text += ".visible .entry " + name + "()\n{\n\tret;\n}\n";
  return text;
}

void add_entry(string &fatbin, bool is_ptx, const string &arch, string payload) {
  while (payload.size() % 8) payload.push_back('\0');
  put(fatbin, is_ptx ? 1 : 2, 2);
  put(fatbin, 0x101, 2);
  put(fatbin, 64, 4);
  put(fatbin, payload.size(), 8);
  put(fatbin, 0, 8);
  put(fatbin, 0, 4);
  put(fatbin, atoi(arch.c_str()), 4);
  put(fatbin, 0, 8);
  put(fatbin, arch.back() == 'a' ? 0x100000 : arch.back() == 'f' ? 0x200000 : 0, 8);
  put(fatbin, 0, 16);
  fatbin += payload;
}

string contained(const string &entries) {
  string head;
  put(head, 0xBA55ED50, 4);
  put(head, 1, 2);
  put(head, 16, 2);
  put(head, entries.size(), 8);
  return head + entries;
}

string fatbin(const Request &request, const strings &names) {
  string entries;
  for (const Image &image : request.images)
    add_entry(entries, image.ptx, image.arch,
              image.ptx ? ptx(request, names, image.arch) : cubin(request, names, image.arch));
  return contained(entries);
}

// The host half of an object file is the host compiler's work, as it is nvcc's way too.
void compile_host(const Request &request, const string &source, const string &device) {
  string text = "asm(\".section .nv_fatbin,\\\"a\\\"\\n.balign 8\\n";
  for (size_t i = 0; i < device.size(); ++i)
    text += (i % 32 ? "," : "\\n.byte ") + std::to_string(static_cast<unsigned char>(device[i]));
  text += "\\n.text\\n\");\n";
  for (const string &name : host_functions(source))
    text += "extern \"C\" int " + name + "() { return 0; }\n";
  int ends[2];
  if (pipe(ends)) die("nvcc fatal   : no pipe", 1);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[0], 0);
    close(ends[1]);
    execlp(request.host_compiler.c_str(), "g++", "-x", "c++", "-O1", "-fPIC", "-c", "-", "-o",
           request.output.c_str(), static_cast<char *>(nullptr));
    _exit(127);
  }
  close(ends[0]);
  for (size_t at = 0; at < text.size();) {
    ssize_t n = write(ends[1], text.data() + at, text.size() - at);
    if (n < 0) break;
    at += n;
  }
  close(ends[1]);
  int status;
  waitpid(child, &status, 0);
  if (status) exit(2);
}

[[noreturn]] void link(const Request &request) {
  strings words = {"g++", "-shared"};
  words.insert(words.end(), request.link_words.begin(), request.link_words.end());
  words.insert(words.end(), {"-o", request.output});
  std::vector<char *> argv;
  for (string &word : words) argv.push_back(&word[0]);
  argv.push_back(nullptr);
  execvp(request.host_compiler.c_str(), argv.data());
  die("nvcc fatal   : no host compiler " + request.host_compiler, 1);
}

// ---- behaviour ----------------------------------------------------------------------------------

void journal(const Request &request, const string &what) {
  string path = toolkit() + "/journal";
  char line[256];
  int length = snprintf(line, sizeof line, "%s %016llx %s\n", request.mode.c_str(),
                        static_cast<unsigned long long>(request.key), what.c_str());
  int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0 || write(file, line, length) != length)
    die("fake nvcc: cannot write the journal " + path, 3);
  close(file);
}

void note(const string &text) {
  string path = toolkit() + "/spans", line = text + "\n";
  int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0 || write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    die("fake nvcc: cannot write " + path, 3);
  close(file);
}

// How many compiles have run at once, by what they noted.
int most_at_once() {
  string text;
  read_file(toolkit() + "/spans", text);
  int now = 0, most = 0;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    now += starts_with(text.substr(at, 5), "begin") ? 1 : -1;
    most = now > most ? now : most;
  }
  return most;
}

void meet(int wanted) {
  for (int tries = 0; most_at_once() < wanted; ++tries) {
    timespec moment = {0, 10'000'000};
    nanosleep(&moment, nullptr);
    if (tries == 6000) die("fake nvcc: they never met", 3);
  }
}

string behaviour(const string &source) {
  for (const char *name : {"fail", "crash", "oom", "hang", "no-output", "torn"})
    if (marked(source, name)) return name;
  return "well";
}

void pause_for(double seconds) {
  timespec time = {static_cast<time_t>(seconds), static_cast<long>((seconds - (long)seconds) * 1e9)};
  nanosleep(&time, nullptr);
}

void misbehave(const string &what, const string &source, const string &name) {
  if (what == "fail") {
    size_t at = source.find("// fake: fail");
    long line = 1;
    for (size_t i = 0; i < at; ++i) line += source[i] == '\n';
    fprintf(stderr, "%s(%ld): error: this was to fail\n\n", name.c_str(), line);
    die("1 error detected in the compilation of \"" + name + "\".", 1);
  }
  if (what == "crash" || what == "oom") {
    rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    raise(what == "crash" ? SIGSEGV : SIGKILL);
  }
  if (what == "hang") {
    fork();
    for (;;) pause();
  }
  if (what == "no-output") exit(0);
}

// ---- faults that are the machine's, or the compiler's own -------------------------------------

struct Fault {
  string name, content;
};

// The next fault of the folder `misbehave`; who removes its file has it.
Fault take_fault() {
  string folder = toolkit() + "/misbehave";
  DIR *list = opendir(folder.c_str());
  strings names;
  while (dirent *entry = list ? readdir(list) : nullptr)
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  if (list) closedir(list);
  std::sort(names.begin(), names.end());
  for (const string &name : names) {
    string path = folder + "/" + name;
    Fault fault = {name.substr(name.find('-') + 1), ""};
    read_file(path, fault.content);
    if (unlink(path.c_str()) == 0) return fault;
  }
  return {"", ""};
}

void scribble(const string &path) {
  if (FILE *file = fopen(path.c_str(), "w")) {
    fputs("written by a compiler that should not have\n", file);
    fclose(file);
  }
}

// A child that goes on; it keeps our output open, or not, and is in our group, or not.
void leave_behind(bool holds_output, bool escapes, const string &writes) {
  if (fork()) return;
  if (escapes) setsid();
  if (!holds_output)
    for (int i = 0; i < 64; ++i) close(i);
  if (!writes.empty()) {
    for (;;) {
      timespec moment = {0, 2'000'000};
      nanosleep(&moment, nullptr);
      scribble(writes);
    }
  }
  for (;;) pause();
}

void end_by(int number) {
  rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  signal(number, SIG_DFL);
  raise(number);
  exit(3);
}

void flood(long bytes, const char *line) {
  string block;
  while (block.size() < (1 << 16)) block += line;
  for (long n = 0; n < bytes; n += block.size())
    if (write(2, block.data(), block.size()) < 0) return;
}

// Faults after which the compile is over.
[[noreturn]] void end_badly(const Fault &fault, const Request &request) {
  const string &what = fault.name;
  if (what == "say") die(fault.content, 1);
  if (what == "say-and-0") die(fault.content, 0);
  if (what == "255") exit(255);
  if (what == "137") exit(137);
  if (what == "empty") scribble(request.output), truncate(request.output.c_str(), 0) ? exit(3) : exit(0);
  if (what == "text") scribble(request.output), exit(0);
  if (what == "folder") mkdir(request.output.c_str(), 0755), exit(0);
  if (what == "fifo") mkfifo(request.output.c_str(), 0644), exit(0);
  if (what == "link") exit(symlink("/etc/passwd", request.output.c_str()) ? 3 : 0);
  if (what == "dangling") exit(symlink("nowhere", request.output.c_str()) ? 3 : 0);
  if (what == "elf") write_file(request.output, string("\x7f" "ELF\x02\x01\x01", 7) + string(4000, '\xff')), exit(0);
  if (what == "huge") scribble(request.output), truncate(request.output.c_str(), 1l << 36) ? exit(3) : exit(0);
  if (what == "stop") raise(SIGSTOP);
  if (what == "hang") leave_behind(true, true, "");
  if (what == "hang") for (;;) pause();
  if (what == "gone") unlink(request.inputs[0].c_str()), exit(1);
  if (what == "no-output") exit(0);
  if (starts_with(what, "signal-")) end_by(atoi(what.c_str() + 7));
  die("fake nvcc: no such fault: " + what, 3);
}

// Faults after which the compile goes on: true when it does.
bool go_on_oddly(const Fault &fault, const Request &request) {
  const string &what = fault.name;
  if (what == "daemon") leave_behind(false, true, "");
  else if (what == "holder") leave_behind(true, false, "");
  else if (what == "escaped-holder") leave_behind(true, true, "");
  else if (what == "late-writer") leave_behind(false, true, "late");
  else if (what == "close") for (int i = 0; i < 64; ++i) close(i);
  else if (what == "noise") flood(100l << 20, "this is a warning that says nothing, and there are many of them\n");
  else if (what == "escapes") flood(1 << 16, "\x1b[2J\x1b]0;title\x07\x1b[31m\xff\xfe\r\b\b warning: red\n");
  else if (what == "elsewhere") for (const char *name : {"program.s", "lib.so", "../stray", "../module/stray", "stray", "\xff\n"}) scribble(name);
  else if (what == "many") for (int i = 0; i < 500; ++i) scribble("stray" + std::to_string(i));
  else if (what == "deep") for (string path = "deep"; path.size() < 1500; path += "/deep") mkdir(path.c_str(), 0755);
  else if (what == "locked") mkdir("locked", 0755), scribble("locked/file"), chmod("locked", 0);
  else if (what == "slow") pause_for(fault.content.empty() ? 0.15 : atof(fault.content.c_str()));
  else if (what == "nice") setpriority(PRIO_PROCESS, 0, 19);
  else if (what == "source") scribble(request.inputs[0]);
  else if (what == "mask") { sigset_t all; sigfillset(&all); sigprocmask(SIG_SETMASK, &all, nullptr); }
  else return what.empty();
  return true;
}

void print_usage(const Request &request, const strings &names) {
  fprintf(stderr, "ptxas info    : 0 bytes gmem\n");
  for (const Image &image : request.images)
    for (const string &name : names) {
      if (image.ptx) continue;
      fprintf(stderr, "ptxas info    : Compiling entry function '%s' for 'sm_%s'\n", name.c_str(),
              image.arch.c_str());
      fprintf(stderr, "ptxas info    : Function properties for %s\n", name.c_str());
      fprintf(stderr, "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n");
      fprintf(stderr, "ptxas info    : Used %u registers, used %u barriers\n", kRegisters, kBarriers);
      fprintf(stderr, "ptxas info    : Compile time = 1.234 ms\n");
    }
}

// The list of what was read, as gcc appends it: `seen` are headers beside the input.
void list_read(const std::set<string> &seen) {
  const char *path = getenv("SUNPRO_DEPENDENCIES");
  FILE *file = path ? fopen(path, "a") : nullptr;
  if (!file) return;
  fprintf(file, "source.o:");
  for (const string &name : seen) fprintf(file, " %s", name.c_str());
  fprintf(file, "\n");
  fclose(file);
}

int compile(Request &request) {
  if (request.inputs.size() != 1) die("nvcc fatal   : one input file, please", 1);
  const string &input = request.inputs[0];
  string source;
  if (!read_file(input, source)) die("nvcc fatal   : Don't know what to do with " + input, 1);
  mix(request, source);
  string what = behaviour(source);
  std::set<string> seen;
  mix_includes(request, input, source, seen);
  list_read(seen);
  Fault fault = take_fault();
  if (what == "well" && (fault.name == "crash" || fault.name == "oom" || fault.name == "torn"))
    what = fault.name;
  bool other = fault.name == "other", goes_on = what != "well" || other || go_on_oddly(fault, request);
  journal(request, fault.name.empty() ? what : fault.name);
  if (!goes_on) end_badly(fault, request);
  const char *makeflags = getenv("MAKEFLAGS");
  string pid = std::to_string(getpid());
  note("begin " + pid + " " + std::to_string(getpriority(PRIO_PROCESS, 0)) +
       (makeflags ? makeflags : ""));
  meet(static_cast<int>(number(source, "meet", 0)));
  for (long n = static_cast<long>(number(source, "noise", 0)); n > 0; n -= 64)
    fprintf(stderr, "%.*s\n", static_cast<int>(n > 64 ? 63 : n - 1),
            "this is a warning that says nothing, and there are many of them");
  pause_for(number(source, "slow", 0));
  misbehave(what, source, base_of(input));
  strings names = kernels(source);
  if (other) names = {"another_program"};
  note("end " + pid);
  if (request.verbose && request.mode != "ptx") print_usage(request, names);
  if (request.mode == "c") {
    compile_host(request, source, fatbin(request, names));
    return 0;
  }
  const string &arch = request.images[0].arch;
  string made = request.mode == "cubin"    ? cubin(request, names, arch)
                : request.mode == "fatbin" ? fatbin(request, names)
                                           : ptx(request, names, arch);
  if (what == "torn") made.resize(made.size() / 2);
  write_file(request.output, made);
  return 0;
}

int join(const strings &words) {
  string output, entries;
  for (const string &word : words) {
    if (starts_with(word, "--create=")) output = word.substr(9);
    if (!starts_with(word, "--image3=")) continue;
    string text, arch = word.substr(word.find("sm=") + 3);
    read_file(word.substr(word.find("file=") + 5), text);
    add_entry(entries, word.find("kind=ptx") != string::npos, arch.substr(0, arch.find(',')), text);
  }
  write_file(output, contained(entries));
  return 0;
}

void print_dryrun() {
  string top = toolkit();
  fprintf(stderr,
          "#$ _NVVM_BRANCH_=nvvm\n#$ _SPACE_= \n#$ _HERE_=%s/bin\n#$ TOP=%s/bin/..\n"
          "#$ CICC_PATH=%s/nvvm/bin\n#$ NVVMIR_LIBRARY_DIR=%s/nvvm/libdevice\n"
          "#$ INCLUDES=\"-I%s/include\"  \n#$ SYSTEM_INCLUDES=\"-isystem\" \"%s/include/cccl\"  \n"
          "#$ LIBRARIES=  \"-L%s/lib64\"\n",
          top.c_str(), top.c_str(), top.c_str(), top.c_str(), top.c_str(), top.c_str(),
          top.c_str());
}

bool answer_question(const strings &words) {
  for (const string &word : words) {
    if (word == "--version") {
      printf("nvcc: NVIDIA (R) Cuda compiler driver\n"
             "Cuda compilation tools, release %s, V%s\n", kRelease, kVersion);
    } else if (word == "--help") {
      printf("Allowed values for this option: ");
      for (const char *arch : kArchs) printf("'compute_%s','sm_%s',", arch, arch);
      printf("'native'.\n");
    } else if (word == "--dryrun") {
      print_dryrun();
    } else {
      continue;
    }
    return true;
  }
  return false;
}

}  // namespace

// What `cicc` is known by: it has no option that prints its release.
extern const char release_line[] __attribute__((used)) =
    "Cuda compilation tools, release 13.0, V13.0.88";

int main(int argc, char **argv) {
  strings words(argv + 1, argv + argc);
  if (answer_question(words)) return 0;
  if (base_of(argv[0]) == "fatbinary") return join(words);
  Request request = parse(words);
  if (request.mode == "shared") link(request);
  if (request.mode.empty() || request.output.empty())
    die("nvcc fatal   : this stand-in compiles with -cubin, -fatbin, -ptx or -c, and links", 1);
  return compile(request);
}

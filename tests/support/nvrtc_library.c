/* An NVRTC for tests: fast, journaled, and it misbehaves when a source tells it to.

   Every compile adds a line with the process's id to $FAKE_NVRTC_JOURNAL. A source that holds
   `crash`, `hang`, `kill`, `memory`, `internal` or `error` after `fake: ` gets what it asks for; any
   other is its own cubin. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char *source; const char *log; } program;

int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 2; return 0; }
int nvrtcGetSupportedArchs(int *archs) { archs[0] = 80; archs[1] = 90; return 0; }
const char *nvrtcGetErrorString(int result) { return result == 11 ? "INTERNAL" : "OTHER"; }

int nvrtcCreateProgram(program **made, const char *source, const char *name, int count,
                       const char **headers, const char **names) {
  (void)name, (void)count, (void)headers, (void)names;
  *made = malloc(sizeof **made);
  **made = (program){strdup(source), "a log\n"};
  return 0;
}

int nvrtcDestroyProgram(program **made) { free((*made)->source); free(*made); return 0; }

static int asked(const program *p, const char *what) {
  char text[64];
  snprintf(text, sizeof text, "fake: %s", what);
  return strstr(p->source, text) != NULL;
}

int nvrtcCompileProgram(program *p, int count, const char **options) {
  (void)count, (void)options;
  const char *path = getenv("FAKE_NVRTC_JOURNAL");
  FILE *journal = path ? fopen(path, "a") : NULL;
  if (journal) { fprintf(journal, "%d\n", (int)getpid()); fclose(journal); }
  if (asked(p, "crash")) raise(SIGSEGV);
  if (asked(p, "kill")) raise(SIGKILL);
  while (asked(p, "hang")) sleep(600);
  if (asked(p, "memory")) return 1;
  if (asked(p, "internal")) return 11;
  if (!asked(p, "error")) return 0;
  p->log = "source.cu(1): error: it was asked for\n";
  return 6;
}

int nvrtcGetProgramLogSize(program *p, size_t *size) { *size = strlen(p->log) + 1; return 0; }
int nvrtcGetProgramLog(program *p, char *log) { strcpy(log, p->log); return 0; }
int nvrtcGetCUBINSize(program *p, size_t *size) { *size = strlen(p->source); return 0; }
int nvrtcGetCUBIN(program *p, char *cubin) { memcpy(cubin, p->source, strlen(p->source)); return 0; }

#define UNIT 1.0f

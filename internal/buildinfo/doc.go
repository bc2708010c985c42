// Package buildinfo tells what this program was built from, as far as the
// toolchain recorded it.
//
// It owns one struct. It reads nothing but the running binary, and knows
// nothing of what the program does.
package buildinfo

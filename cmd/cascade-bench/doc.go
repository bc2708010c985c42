// Cascade-bench holds the instruments of the operator's tool: cascade bench runs
// it with the same arguments. Each verb measures one subject, with the package
// of its name, against a yardstick on the same machine.
//
// Results go to standard output, as tables or, with --json, as JSON alone;
// progress, logs and errors go to standard error. Exit status: 0 success,
// 1 failure, 2 wrong usage.
//
// This is flags, output and exit codes. The program needs no running rank and
// reads no configuration. One verb, hbm, is another program, cascade-gpu: this one
// is static, and must not load the CUDA driver. Its words are those of cmd/cascade-bench/kit.
package main

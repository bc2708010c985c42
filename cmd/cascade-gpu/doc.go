// Cascade-gpu is what has the CUDA driver in it, in a program of its own: it loads
// libcuda at run time, and so needs the machine's C library, which cascaded and
// cascade do not. cascade gpu runs it with the same arguments. Its verb probe
// reports the GPUs of the machine, and which ways of having one start I/O work on it;
// hbm measures copies, for cascade bench hbm too; profile makes the profile of a
// deployment for the slack scheduler.
//
// Results go to standard output, as tables or, with --json, as JSON alone. Exit
// status: 0 success, which for probe includes no driver and no GPU; 1 failure, which for
// hbm includes them; 2 wrong usage.
//
// Glossary
//
//	trigger  what starts an I/O once data of a GPU are ready: cpu, a thread of the
//	         process; memop, a memory operation of a stream; ptx, a kernel
//
// The program needs no running rank and reads no configuration.
package main

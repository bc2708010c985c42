// Package cpus knows how many cores the process may use, and lets more of its
// goroutines wait in the kernel than there are cores.
//
// Glossary
//
//	core    what Go takes for one when the program starts: of the machine, of
//	        the process's affinity, or of its cgroup's quota, whichever is
//	        least, unless the environment's GOMAXPROCS says otherwise
//	waiter  a goroutine that copies or waits in a system call, again and again
//	        for some microseconds
//
// The package binds nothing to a core and measures nothing.
package cpus

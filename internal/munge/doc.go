// Package munge proves to other nodes of a cluster as which user a process
// runs, by the credentials of MUNGE, the service on which Slurm relies.
//
// Glossary
//
//	munged      MUNGE's daemon, one on every node of a cluster, all with one key
//	credential  a text that a munged signed and encrypted for a payload and a
//	            user. Any munged of the cluster reports whether it is genuine and
//	            whose it is, and refuses to see it twice
//
// The package runs MUNGE's own programs, munge and unmunge, which are installed
// wherever munged is: libmunge would need a C compiler, and its Go binding has
// a licence that a program under ours cannot use. The package starts no munged,
// and does not hide what is sent: it proves who sends.
package munge

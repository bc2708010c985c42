// Package munge proves to other nodes of a cluster as which user a process
// runs, by the credentials of MUNGE, the service on which Slurm relies.
//
// A credential is a text that the node's munged signed, and encrypted, for a
// payload and a user. Any munged of the cluster tells whether it is genuine,
// whose it is, and refuses to see it twice.
//
// The package runs MUNGE's own programs, munge and unmunge, which are installed
// wherever munged is: libmunge would need a C compiler, and its Go binding has
// a licence that a program under ours cannot use. It starts no munged.
package munge

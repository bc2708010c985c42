// Package notes records on a node what processes of a Slurm job would leave behind if they
// were killed, besides the shared memory of ranks: sockets, and the directory with the secret
// of a launch. Whoever makes such a thing adds a note before and removes it after; the epilog
// of the job removes what is noted still.
//
// A note is a symbolic link in the directory of the user's sockets, /tmp/cascade-UID. It is
// called jobJOB-HASH.left and its target is the path; nobody follows it. Directory and notes
// must be the user's own, and so must what a note names: a socket on which nobody listens, or
// a directory called .cascade-… that is open to that user alone, of which the files go.
//
// The package does not find arenas, which record their job themselves (tiers/shm), and does not
// change users: whoever cleans up after a user calls it as that user.
package notes

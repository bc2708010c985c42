// Package arenas has the verb cascade arena: it lists and removes arena files, the shared
// memory of ranks. What an arena file is, and what may be removed, is the business of the
// packages tiers/shm and slurm/epilog.
//
// The package does not know the other verbs: the program that has it passes what it needs
// in a Tool.
package arenas

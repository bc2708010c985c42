// Package launcher has the verb cascade launch: its flags, what it prints, and the
// signals of the program while an engine runs. What starts and stops ranks is the
// package slurm/launch.
//
// The package does not know how engines are configured, nor the other verbs: the
// program that has it passes that in a Tool.
package launcher

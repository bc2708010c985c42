// Package plan sizes the levels of a job for a trace: it simulates many sizes, and finds the
// cheapest that meets a target.
//
// Glossary
//
//	configuration   how much of each level a job gets, and what comes of it
//	frontier        configurations that no other beats in cost, P90 and hits together
//
// The package has equation 1 of the CASCADE paper (bytes per token of a model) and formula (1)
// of the Tutti paper (cost per million tokens). Hits and times to first token are those of package
// internal/simulate. The package knows no machine: callers say what levels there are and what
// they cost. It prints nothing.
package plan

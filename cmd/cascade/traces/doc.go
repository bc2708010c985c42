// Package traces has the verbs below cascade trace: they record, replay,
// summarise, make, convert and plan with traces of prefix hashes. Each verb is
// its flags, what it prints, and one call of a package that does the work.
//
// The package does not know how a rank is found, nor the other verbs: the
// program that has it passes that in a Tool.
package traces

// Package program replaces the program of this process by another one, which goes
// on with its clients (docs/protocol.md, Upgrade). The other program is asked
// first what it can take over, by
//
//	cascaded --check-handover ARGUMENTS
//
// which prints an ability, and then becomes this process as
//
//	cascaded --handover=DESCRIPTOR [--then-end] ARGUMENTS
//
// These words are for programs, and come first.
//
// Glossary
//
//	successor  the program that takes this one's place
//	ability    what a program could take over, as it prints it
//
// The package does not collect or use that state, and starts no second process but
// to ask for an ability.
package program

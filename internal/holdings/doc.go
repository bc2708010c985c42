// Package holdings counts what clients hold of the arena: views that they read in
// place, stages that they fill, and pins.
//
// Glossary
//
//	view    a block that a client reads in place, in the arena that it maps
//	stage   room in the arena that a client fills
//	pin     a block that stays in memory as long as a client wants
//	budget  bounds what all clients hold together
//
// A program can save what a client holds and another one go on with it. The package
// does not decide which blocks those are.
package holdings

// Package holdings counts what clients hold of the arena: views that they read in
// place, stages that they fill, and pins.
//
// A program can save what a client holds and another one go on with it. The package
// does not decide which blocks those are.
package holdings

//go:build !faults

package inject

import "context"

// Enabled reports whether the build has the tag faults.
const Enabled = false

// Err returns the error with which a step fails at once, nil if it does not.
func Err(Step) error { return nil }

// Wait returns the error with which a step fails, after the time that it takes to; nil
// if it does not fail, however late. The error is that of ctx if that ends first.
func Wait(context.Context, Step) error { return nil }

// Lost reports whether the answer of a step is lost on its way.
func Lost(Step) bool { return false }

// Read is given what a read of n bytes into bufs returned, and returns what is made of
// it. A delay ends with ctx.
func Read(_ context.Context, _ Step, n int64, err error, _ ...[]byte) (int64, error) { return n, err }

// Source returns what a step copies where it should copy p, after the time that it
// takes to.
func Source(_ Step, p []byte) ([]byte, error) { return p, nil }

// Armed reports whether there is a rule for a step.
func Armed(Step) bool { return false }

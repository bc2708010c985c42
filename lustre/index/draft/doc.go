// Package draft sorts what one step changes in a Pebble database, so that Pebble
// finds the batch in order.
//
// It knows of keys only that most are a small number and then a hash. The package
// does not give keys and values a meaning, read the database or commit: its caller
// does.
package draft

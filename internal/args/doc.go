// Package args reads the words of commands that clients send: options of SET, SCAN,
// HELLO and of CASCADE.*.
//
// Glossary
//
//	bad  the text of an error reply to words that are not understood; "" for none
//
// The package does not know connections, and does nothing with what was asked for.
package args

// Package tiertest is the one conformance suite that every tier passes. A
// tier's own test calls Run with a Config that says how to open it and which
// optional promises it makes; everything the interface in package tiers states
// is then tried against it, the promises of tiers.Memory included when the
// tier implements that.
//
// Glossary
//
//	reopen  Close, then open what lives in the same directory
//	crash   open it without Close: what a restart after kill -9 finds
//	model   a map that the randomized test keeps beside the tier
//	ghost   a block that was evicted and that recovery hands over again; a tier
//	        on files may do so, with the right bytes
//
// The suite knows no tier and measures no time. It does not test what a tier
// does on failing hardware: tests beside the tier inject that.
package tiertest

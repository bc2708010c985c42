// Package ratelog bounds how often a program logs what strangers cause, so that
// they can not fill a disk or hide other lines, and counts what it leaves out.
//
// Glossary
//
//	skipped  lines that a Limit did not allow, since the last one that it did
//
// The package does not log, and does not distinguish lines: those that matter
// more than others need a Limit of their own.
package ratelog

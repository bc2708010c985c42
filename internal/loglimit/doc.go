// Package loglimit bounds how many log lines repeated events cause, so that
// whoever causes the events cannot fill a disk or hide other lines.
//
// Glossary
//
//	suppressed  counted, and not logged
//
// The package writes no lines itself: callers do, with the count that they get.
package loglimit

// Package loglimit bounds how many log lines repeated events cause, so that
// whoever causes the events cannot fill a disk or hide other lines.
//
// Glossary
//
//	event       something that is worth a line, such as a refused connection
//	key         what makes events alike, such as the address that they come from
//	suppressed  counted, and not logged
//
// The package writes no lines itself: callers do, with the count that they get.
package loglimit

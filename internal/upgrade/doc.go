// Package upgrade brings a server to rest, so that another program can take its place
// in the same process (internal/handover has what moves between them).
//
// Glossary
//
//	rest   to wait between two commands, of a connection; to accept nobody, of a
//	       listener; to begin no turn, of jobs
//	front  what has to come to rest together
//
// Connections rest for a moment at a time, far less than clients wait for an answer.
// The package does not replace the program, and does not know what is handed over.
package upgrade

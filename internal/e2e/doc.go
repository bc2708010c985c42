// Package e2e drives the programs as their users do: real processes, real
// sockets, real signals, real files. It consists of tests only.
//
// Glossary
//
//	scribe    a client that puts marks until it is stopped
//	storm     several clients that write as fast as they can
//	journal   what the clients of a storm know to be acknowledged, kept on
//	          their side of the socket
//	need      a component that a test drives; where it is missing the test is
//	          skipped and says what it lacks, and with CI=true it fails
//
// What a package can show by itself belongs into that package's own tests. The
// package does not reach into a program: it knows of one what its users see.
package e2e

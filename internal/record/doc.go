// Package record makes a trace of what the clients of a live rank ask for: it puts the
// commands that belong to one request of an engine together, and writes requests with
// salted ids for their blocks.
//
// The package reads what the rank logged (cascade/traffic); it asks for no keys and no
// values, and what it writes has neither, nor names of namespaces.
package record

// Cascade is the operator's tool: it looks at ranks, moves blocks by hand,
// checks configurations and nodes, and replays traces.
//
// Glossary
//
//	app      what all verbs share: streams, configuration, output form
//	check    one question that doctor asks, with its answer and remedy
//	machine  the node as doctor sees it; a made-up one in tests
//
// Results go to standard output, as text or, with --json, as JSON alone;
// progress, logs and complaints go to standard error.
//
// Exit status: 0 success, 1 failure, 2 wrong usage or configuration, 3 a miss:
// what was asked for is not cached.
//
// This is flags, output and exit codes: what a verb does is in the package that
// it names. The tool needs no rank to be running except where a verb asks one,
// and changes nothing but what the verb is for.
package main

// Package resp speaks the Redis serialization protocol, both ends of it:
// Reader and Writer for a server, Client for tools.
//
// It owns the bytes on a connection and nothing behind them. Values of any
// size pass between the socket and memory that the caller names, without a
// copy and without a stay on the Go heap: on the way in a Sink decides where an
// argument goes, on the way out Writer.BulkRef borrows the bytes until Flush.
//
// Glossary
//
//	command   what a client sends: an array of bulk strings, or an inline line
//	bulk      a counted string: $<bytes>\r\n…\r\n
//	argument  one bulk of a command; the first is the command's name
//	sunk      an argument whose bytes a Receiver got; nil in Command.Args
//	reply     what a server answers: one value of RESP2 or RESP3
//	in sync   both sides agree where the next command or reply begins
//
// The package does not know what commands mean, opens no listener, authenticates
// nobody and stores nothing.
package resp

// Package mpi is the fabric over MPI: build tag mpi; without it the package
// only knows the messages (docs/mpi.md has their layout).
//
// Glossary
//
//	driver     who may call MPI now: one goroutine at a time
//	leader     a caller that is the driver until its own answer is here, so that
//	           no goroutine has to be woken for it
//	control    a small message with a fixed tag: a request, an answer, a status
//	data       a payload or a long body, with a tag of its own for each request
//	nap        how long the watch sleeps when nothing happens
//
// A read is two-sided: the reader posts the receive straight into the caller's
// memory before it asks; the owner sends straight from the held region. What
// MPI reports as sent proves nothing: only an answer ends a request, or its
// deadline. A receive can not be taken back for sure, so a read that ran out of
// time keeps its memory until the bytes came (fabric.Lingering).
//
// MPI has one life in a process and knows no new ranks: dht/mpi starts and ends
// it. This package does not decide who is alive, and retries nothing.
package mpi

// Package transfer moves blocks between the memory of clients, their regions
// (internal/region), and a store: CASCADE.STORE and CASCADE.LOAD.
//
// Glossary
//
//	turn      what a transfer moves before others get the worker
//	client    the regions and jobs of one connection
//	budget    bounds what the regions of all clients cost
//
// Clients take turns whatever one of them has queued. A program can save the regions
// and jobs of a client and another one go on with them. The package does not know
// what is spoken on connections, and keeps no blocks.
package transfer

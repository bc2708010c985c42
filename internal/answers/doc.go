// Package answers writes what a store found as replies: of docs/protocol.md, "Commands of our
// own", the maps that have fields. Clients find a field by its name, so that there may be
// more of them one day; none is left out.
//
// The package does not read commands, and looks nothing up but what belongs to an answer.
package answers

// Package nodeaddr finds the address at which other nodes reach this one: that of an
// interface, of the node's name, or of its first interface, and never one that only
// the node itself can use while it has another.
//
// A rank's listeners for other ranks use it, and whoever starts ranks, who has to
// know before where they will listen. The package opens no listener, and does not
// try whether an address is reached.
package nodeaddr

// Package nodeaddr finds the address at which other nodes reach this one, and says why
// it is that one; and a port of those that a site lets through.
//
// Where nothing is asked for, the address is that of the high-speed network (interfaces
// hsn* and ib*), else of the node's name, unless another network card has a faster link,
// else of the first interface; never one that only the node itself can use while it has
// another.
//
// A rank's listeners for other ranks use it, and whoever starts ranks, who has to
// know before where they will listen. The package keeps no listener open, and does not
// try whether an address is reached.
package nodeaddr

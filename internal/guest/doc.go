// Package guest runs throw-away machines with a real Lustre in them, for
// tests. It drives the equipment in the folder shared/lustre beside the
// repository: lustre-vm.sh, a machine that is servers and client at once, and
// lustre-pair.py, servers and client on two machines.
//
// Glossary
//
//	equipment  the folder with the scripts and the images; no part of the product
//	keeper     a process that ends a guest and wipes its folder once the process
//	           that started it has let go of it, or is dead
//
// The file system is at /mnt/lustre in a guest, and this machine's root at
// /host; Host translates paths. Programs that run in a guest must be static.
// Each command runs as root, and its output comes when it has ended.
//
// Everything has a deadline. When one passes, the caller gets an error, and what runs
// in the guest goes on until the guest ends. Guests outlive nothing: neither
// their folder nor a process of theirs is left behind, even if the test is
// killed.
//
// The package knows nothing of CASCADE, and checks nothing.
package guest

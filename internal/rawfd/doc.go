// Package rawfd takes connections away from Go's poller, which wakes a thread
// for every piece that arrives, though nobody waits there: whoever waits for
// many pieces at a time waits in the kernel.
//
// It hands over a descriptor. Reading, writing, deadlines and closing are its
// users' (internal/server, dht/fabric/tcp, internal/bench), each in its own way.
package rawfd

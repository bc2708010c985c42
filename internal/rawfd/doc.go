// Package rawfd takes connections away from Go's poller, which wakes a thread
// for every piece that arrives, though nobody waits there: whoever waits for
// many pieces at a time waits in the kernel.
//
// It also asks the kernel about sockets that stay with the poller. The package hands over a descriptor and does nothing with it: reading, writing,
// deadlines and closing are its users' (internal/server, dht/fabric/tcp,
// cmd/cascade-bench/respbench), each in its own way.
package rawfd

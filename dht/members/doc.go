// Package members keeps who is alive: which ranks the job has now, where they
// are reached, and which of them do not answer.
//
// Glossary
//
//	member     one life of a rank: its number, incarnation and addresses
//	gossip     github.com/hashicorp/memberlist: ranks probe each other and pass
//	           on what they learn; it agrees on a death after about 12 s
//	seed       a gossip address to ask first; one that answers is enough
//	verdict    what gossip reports of a member: alive, or gone
//	suspicion  what our own failed calls say, sooner than gossip. It ends with
//	           an answer, with gossip's verdict, or with time
//	seat       a rank's number and the member that holds it: of several, the
//	           one with the highest incarnation
//
// There is no service to ask: ranks start from seeds (the MPI world's addresses
// or a host list) and keep trying those, and members that died, so that a rank
// may start first and a partition heals. The policy is in view.go, without a
// clock and without gossip; gossip.go and join.go are its mechanism.
//
// docs/protocol.md, "Membership", has the bytes and the rules. The package does
// not place keys (dht/ring), calls no rank itself (dht/fabric), and does not
// restart or end any.
package members

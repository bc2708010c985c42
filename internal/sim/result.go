package sim

// Result is what a simulation found, flat for scripts. Shares are of all
// entries: names times replicas.
type Result struct {
	Ranks    int    `json:"ranks"` // at the start
	Replicas int    `json:"replicas"`
	Names    int    `json:"names"`   // of all ranks together
	Entries  int    `json:"entries"` // in all directories together
	Seed     uint64 `json:"seed"`

	// Single gets of every name by a random rank that is not its owner, when
	// all is settled: after publishing, after the join and after the death.
	Gets          int     `json:"gets"`
	LookupsPerGet float64 `json:"lookups_per_get"` // messages; below 1, for some ask themselves
	LookupsMax    int     `json:"lookups_max"`
	ReadsPerGet   float64 `json:"reads_per_get"`
	HopsP50       int     `json:"hops_p50"` // messages and reads
	HopsMax       int     `json:"hops_max"`

	// Every chain, asked for at once by a rank that has none of it.
	Chains           int     `json:"chains"`
	ChainKeys        int     `json:"chain_keys"`         // of one chain
	ChainMessagesP50 int     `json:"chain_messages_p50"` // for one chain
	ChainMessagesMax int     `json:"chain_messages_max"`
	ChainPerGet      float64 `json:"chain_messages_per_get"` // messages divided by keys

	// The largest figure of a rank divided by the mean of all.
	BalanceMaxOverMean float64 `json:"balance_max_over_mean"` // partitions as owner
	BalanceHomes       float64 `json:"balance_homes"`         // partitions as any home
	BalanceEntries     float64 `json:"balance_entries"`       // entries; few names spread less evenly than partitions

	// One rank joins while gets go on.
	JoinMovedEntries     int     `json:"join_moved_entries"` // that came to a directory
	JoinMovedShare       float64 `json:"join_moved_share"`
	JoinMovedShareTimesN float64 `json:"join_moved_share_times_n"`
	JoinStatements       int     `json:"join_statements"`  // that homes were sent: these entries, and updates
	JoinBlockBytes       int64   `json:"join_block_bytes"` // read by anything but a get
	JoinGets             int     `json:"join_gets"`        // between the change and its end
	JoinUpdates          int     `json:"join_updates"`     // blocks that moved in their owner's memory meanwhile
	JoinMisses           int     `json:"join_misses"`      // of the gets
	JoinHopsMax          int     `json:"join_hops_max"`    // of the gets
	JoinSeconds          float64 `json:"join_seconds"`     // until every entry was in its place, in this process

	// One rank of the first dies while gets go on. Its names are lost, for the
	// simulation has no shared file system; those it was a home of are not.
	LeaveLostNames        int     `json:"leave_lost_names"`
	LeaveLostShareTimesN  float64 `json:"leave_lost_share_times_n"`
	LeaveFoundAgain       int     `json:"leave_found_again"` // living ranks' names that lost a home, and were found afterwards
	LeaveMovedEntries     int     `json:"leave_moved_entries"`
	LeaveMovedShare       float64 `json:"leave_moved_share"`
	LeaveMovedShareTimesN float64 `json:"leave_moved_share_times_n"`
	LeaveStatements       int     `json:"leave_statements"`
	LeaveBlockBytes       int64   `json:"leave_block_bytes"`
	LeaveGets             int     `json:"leave_gets"`
	LeaveUpdates          int     `json:"leave_updates"`
	LeaveMisses           int     `json:"leave_misses"` // of names whose owner lives
	LeaveHopsMax          int     `json:"leave_hops_max"`
	LeaveSeconds          float64 `json:"leave_seconds"`

	WrongAnswers int     `json:"wrong_answers"` // anything but 0 is an error
	UnknownNames int     `json:"unknown_names"` // anything but 0 is an error
	AbsentAsked  int     `json:"absent_asked"`  // gets of names that nobody published
	Seconds      float64 `json:"seconds"`       // of the whole simulation
	CPUSeconds   float64 `json:"cpu_seconds"`   // of this process meanwhile
}

package trace

// BlockTokens is the number of tokens of a block in Mooncake's traces.
const BlockTokens = 512

// Request is one line of a trace.
type Request struct {
	Timestamp    int64    // milliseconds since the trace began
	InputTokens  int      // length of the prompt
	OutputTokens int      // length of the answer
	Hashes       []uint64 // ids of the prompt's blocks, head first; none where a trace has lengths only

	// Hints: what an engine may know beside the prompt. Each is zero where the
	// trace does not give it, and no reader needs any.
	Session      string // conversation that the request belongs to
	Group        string // what the session shares with others, aiperf's group_id; a Writer leaves it out
	SharedBlocks int    // leading blocks that belong to a prompt shared by sessions
	Pause        int64  // milliseconds from the end of the answer to the session's next request
}

// Tokens returns how many tokens of the prompt lie in block i: blockTokens
// (0 means BlockTokens), less for the last block, 0 outside the prompt.
func (r *Request) Tokens(i, blockTokens int) int {
	blockTokens = orDefault(blockTokens)
	return max(0, min(blockTokens, r.InputTokens-i*blockTokens))
}

// blocks returns how many blocks a prompt of that many tokens has.
func blocks(tokens, blockTokens int) int {
	n := tokens / blockTokens
	if tokens%blockTokens != 0 {
		n++
	}
	return n
}

func orDefault(blockTokens int) int {
	if blockTokens <= 0 {
		return BlockTokens
	}
	return blockTokens
}

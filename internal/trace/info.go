package trace

import "io"

// Source yields requests in order, io.EOF at the end. Reader and Synth are sources.
type Source interface {
	// Next reads the next request into req, reusing the capacity of req.Hashes.
	Next(req *Request) error
}

// Info summarises a trace. The hit figures are those of a cache without limits
// that stores every block of every request, under the prefix rule: a block is
// hit when it and all blocks before it in its request were seen earlier.
type Info struct {
	Requests     int   `json:"requests"`
	Blocks       int64 `json:"blocks"`        // Σ over requests
	UniqueBlocks int64 `json:"unique_blocks"` // distinct hash ids
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	LongestInput int   `json:"longest_input"` // tokens
	Milliseconds int64 `json:"milliseconds"`  // from the first request to the last

	HitBlocks      int64   `json:"hit_blocks"`
	HitTokens      int64   `json:"hit_tokens"`
	HitRatioBlocks float64 `json:"hit_ratio_blocks"`
	HitRatioTokens float64 `json:"hit_ratio_tokens"`

	// Reparented counts blocks that follow different blocks in different
	// requests. Above zero, hash ids do not stand for prefixes and the hit
	// figures of any prefix cache mean little.
	Reparented int64 `json:"reparented"`

	// Assumed is for the caller, who has the Reader.
	Assumed Assumed `json:"assumed,omitzero"`
}

// Summarize reads src to its end, at most limit requests unless limit is 0.
// blockTokens is 0 for BlockTokens. It keeps 16 bytes per distinct block.
func Summarize(src Source, blockTokens, limit int) (Info, error) {
	var info Info
	var req Request
	var first, last int64
	parents := make(map[uint64]uint64)
	for limit <= 0 || info.Requests < limit {
		err := src.Next(&req)
		if err == io.EOF {
			break
		}
		if err != nil {
			return Info{}, err
		}
		if info.Requests == 0 {
			first, last = req.Timestamp, req.Timestamp
		}
		first, last = min(first, req.Timestamp), max(last, req.Timestamp)
		info.add(&req, blockTokens, parents)
	}
	info.UniqueBlocks = int64(len(parents))
	info.Milliseconds = last - first
	info.HitRatioBlocks = ratio(info.HitBlocks, info.Blocks)
	info.HitRatioTokens = ratio(info.HitTokens, info.InputTokens)
	return info, nil
}

// add counts one request; parents maps every block seen to the one before it.
func (info *Info) add(req *Request, blockTokens int, parents map[uint64]uint64) {
	info.Requests++
	info.Blocks += int64(len(req.Hashes))
	info.InputTokens += int64(req.InputTokens)
	info.OutputTokens += int64(req.OutputTokens)
	info.LongestInput = max(info.LongestInput, req.InputTokens)
	prefix, parent := true, ^uint64(0)
	for i, h := range req.Hashes {
		p, seen := parents[h]
		if prefix = prefix && seen; prefix {
			info.HitBlocks++
			info.HitTokens += int64(req.Tokens(i, blockTokens))
		}
		if !seen {
			parents[h] = parent
		} else if p != parent {
			info.Reparented++
		}
		parent = h
	}
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

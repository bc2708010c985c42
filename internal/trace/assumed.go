package trace

import (
	"fmt"
	"strings"
)

// Assumed counts what a Reader took for granted where a trace leaves something
// open or writes it in a form of its own. The zero value means nothing was.
type Assumed struct {
	NoTimestamp   int `json:"timestamp_missing,omitempty"`      // that of the request before
	Delays        int `json:"timestamp_from_delay,omitempty"`   // the request before in the session, and the delay
	Fractions     int `json:"timestamp_fractions,omitempty"`    // rounded to milliseconds
	OutOfOrder    int `json:"timestamp_out_of_order,omitempty"` // requests keep the order of the file
	NoInput       int `json:"input_length_missing,omitempty"`   // as many tokens as the blocks have
	NoOutput      int `json:"output_length_missing,omitempty"`  // 0
	FullBlocks    int `json:"partial_block_unnamed,omitempty"`  // the prompt's last tokens belong to no block
	RepeatedIDs   int `json:"hash_id_repeated,omitempty"`       // another id was derived for the repetition
	TextIDs       int `json:"hash_id_text_or_sign,omitempty"`   // 64 bits stand for the id
	QuotedNumbers int `json:"numbers_in_quotes,omitempty"`      // read as numbers
	LengthsOnly   int `json:"lengths_only,omitempty"`           // requests without hash ids
	Accumulated   int `json:"prompts_accumulated,omitempty"`    // the session's tokens so far come before the line's
	OtherHeads    int `json:"session_head_differs,omitempty"`   // taken for whole prompts
}

// String is one line without a line end, empty when nothing was assumed.
func (a Assumed) String() string {
	var parts []string
	for _, one := range []struct {
		n    int
		text string
	}{
		{a.NoTimestamp, "requests without a timestamp: that of the request before"},
		{a.Delays, "timestamps are the session's last one and the delay, as if answers took no time"},
		{a.Fractions, "timestamps with a fraction: rounded to milliseconds"},
		{a.OutOfOrder, "requests earlier than the one before them: kept in the order of the file"},
		{a.NoInput, "requests without input_length: their blocks are full"},
		{a.NoOutput, "requests without output_length: 0"},
		{a.FullBlocks, "prompts without an id for their last, partial block: its tokens are never hit"},
		{a.RepeatedIDs, "ids again in one prompt: another id derived from what precedes them"},
		{a.TextIDs, "ids that are text or negative: 64 bits of them"},
		{a.QuotedNumbers, "numbers in quotes: read as numbers"},
		{a.LengthsOnly, "requests with lengths only: without hash ids nothing is known of reuse"},
		{a.Accumulated, "lines have a turn's new tokens only: the session's prompt and answers before them are part of the prompt"},
		{a.OtherHeads, "requests with a delay begin with another block than their session: taken for whole prompts; if such lines have new tokens only, name the form aiperf"},
	} {
		if one.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", one.n, one.text))
		}
	}
	return strings.Join(parts, "; ")
}

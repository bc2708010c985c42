//go:build faults

package server

import "cascadekv/internal/inject"

func init() {
	handlers["CASCADE.FAULTS"] = handler{run: cmdCascadeFaults, min: 1, own: true}
}

// cmdCascadeFaults reports what the rules in force have done, and puts those that it is
// given in their place; OFF: none.
func cmdCascadeFaults(c *conn, words [][]byte) {
	done := inject.Report()
	if len(words) > 1 {
		var rules []string
		for _, w := range words[1:] {
			if string(w) != "OFF" {
				rules = append(rules, string(w))
			}
		}
		if err := inject.Set(rules...); err != nil {
			c.wr.Error("ERR " + err.Error())
			return
		}
	}
	c.wr.JSON(done)
}

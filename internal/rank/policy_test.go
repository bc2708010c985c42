package rank

import (
	"testing"

	"cascadekv/cascade/policy"
	"cascadekv/internal/config"
)

// The configuration takes the policies that the store offers, and has the same default.
func TestPolicyWords(t *testing.T) {
	c := config.Default()
	if names := policy.Names(); c.Policy != names[0] {
		t.Errorf("the default is %q, not %q", c.Policy, names[0])
	}
	for _, name := range policy.AllNames() {
		offered := false
		for _, one := range policy.Names() {
			offered = offered || one == name
		}
		if c.Policy = name; (c.Validate() == nil) != offered {
			t.Errorf("policy %q: %v", name, c.Validate())
		}
	}
}

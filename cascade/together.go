package cascade

import (
	"cascadekv/cascade/inference"
	"cascadekv/cascade/residency"
)

// Asked records that keys were asked for together, in order: from that s infers the
// chains of namespaces where nobody names parents. The keys are only read.
func Asked[K inference.Text](s *Store, ns string, keys []K) { residency.Asked(s.state, ns, keys) }

// PutTogether is Asked for keys that are put together, before or after.
func PutTogether(s *Store, ns string, keys []string) { residency.Put(s.state, ns, keys) }

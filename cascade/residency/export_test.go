package residency

var CheckWith = checkWith

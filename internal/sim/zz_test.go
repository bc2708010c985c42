package sim
import ("testing";"time";"sync")
func TestZZ(t *testing.T){
 var mu sync.Mutex; last:=""; s:=time.Now()
 _,err:=Run(t.Context(),Options{Ranks:1024,Seed:1,Progress:func(p string,d,n int){ mu.Lock();defer mu.Unlock(); if p!=last||d==n {t.Logf("%s %s %d/%d",time.Since(s),p,d,n);last=p}}})
 t.Log(err)
}

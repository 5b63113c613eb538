import pagefold
def test_x(): 
    a = pagefold.zeros(4<<20, "u1", "1M"); a[:] = 3; assert a.sum() == 3*(4<<20); print(repr(a.base)); assert 0

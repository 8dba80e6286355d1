import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.data.Stat;

/**
 * Curator's recipes against the server at args[0]. Only final states are printed: Curator's caches
 * may merge events, so each step waits until a state is reached, never for a number of events.
 */
public class CuratorSmoke {
    static final long WAIT = 60;
    static final String ROOT = "/curator";

    static CuratorFramework client(String address) throws Exception {
        CuratorFramework c = CuratorFrameworkFactory.builder().connectString(address)
            .sessionTimeoutMs(30000).connectionTimeoutMs(30000).retryPolicy(new RetryOneTime(1000)).build();
        c.start();
        if (!c.blockUntilConnected((int) WAIT, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not connected");
        }
        return c;
    }

    static void await(String what, Callable<Boolean> condition) throws Exception {
        for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT); !condition.call(); Thread.sleep(20)) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("waited in vain for " + what);
            }
        }
        System.out.println("reached: " + what);
    }

    static String both(Callable<Boolean> first, Callable<Boolean> second) throws Exception {
        FutureTask<Boolean> task = new FutureTask<>(second);
        new Thread(task).start();
        boolean result = first.call();
        return result + " " + task.get();
    }

    static byte[] bytes(String s) {
        return s.getBytes(StandardCharsets.UTF_8);
    }

    static List<String> children(CuratorFramework c, String path) throws Exception {
        List<String> names = new ArrayList<>(c.getChildren().forPath(path));
        Collections.sort(names);
        return names;
    }

    static void basics(CuratorFramework c) throws Exception {
        Stat stat = new Stat();
        System.out.println(c.create().creatingParentContainersIfNeeded().forPath(ROOT + "/basic/a", bytes("one")));
        System.out.println(new String(c.getData().storingStatIn(stat).forPath(ROOT + "/basic/a")) + " " + stat.getVersion());
        System.out.println("version " + c.setData().withVersion(0).forPath(ROOT + "/basic/a", bytes("two")).getVersion());
        try {
            c.setData().withVersion(0).forPath(ROOT + "/basic/a", bytes("three"));
        } catch (KeeperException.BadVersionException e) {
            System.out.println("bad version");
        }
        String seq = c.create().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath(ROOT + "/basic/s-");
        System.out.println(seq.replaceAll("_c_[-0-9a-f]{36}-", "GUID-"));
        c.delete().guaranteed().forPath(seq);
        stat = new Stat();
        c.create().orSetData().storingStatIn(stat).forPath(ROOT + "/basic/b", bytes("x"));
        System.out.println("create2 " + stat.getVersion() + " " + stat.getDataLength() + " " + children(c, ROOT + "/basic"));
        for (CuratorTransactionResult r : c.transaction().forOperations(
            c.transactionOp().create().forPath(ROOT + "/tx", bytes("t")),
            c.transactionOp().setData().forPath(ROOT + "/tx", bytes("u")),
            c.transactionOp().check().withVersion(1).forPath(ROOT + "/tx"),
            c.transactionOp().delete().forPath(ROOT + "/tx"))) {
            System.out.println(r.getType() + " " + r.getForPath() + " " + r.getError());
        }
    }

    static void locks(CuratorFramework a, CuratorFramework b) throws Exception {
        InterProcessMutex first = new InterProcessMutex(a, ROOT + "/mutex");
        InterProcessMutex second = new InterProcessMutex(b, ROOT + "/mutex");
        System.out.println("mutex " + first.acquire(WAIT, TimeUnit.SECONDS) + " " + second.acquire(1, TimeUnit.MILLISECONDS));
        first.release();
        System.out.println("mutex " + second.acquire(WAIT, TimeUnit.SECONDS));
        second.release();
        InterProcessReadWriteLock rw = new InterProcessReadWriteLock(a, ROOT + "/rw");
        InterProcessReadWriteLock rw2 = new InterProcessReadWriteLock(b, ROOT + "/rw");
        System.out.println("read " + rw.readLock().acquire(WAIT, TimeUnit.SECONDS) + " " + rw2.readLock().acquire(WAIT, TimeUnit.SECONDS)
            + " write " + new InterProcessReadWriteLock(b, ROOT + "/rw").writeLock().acquire(1, TimeUnit.MILLISECONDS));
        rw.readLock().release();
        rw2.readLock().release();
        System.out.println("write " + rw2.writeLock().acquire(WAIT, TimeUnit.SECONDS));
        rw2.writeLock().release();
        InterProcessSemaphoreV2 sem = new InterProcessSemaphoreV2(a, ROOT + "/sem", 1);
        Lease lease = sem.acquire(WAIT, TimeUnit.SECONDS);
        System.out.println("semaphore " + (lease != null) + " "
            + (new InterProcessSemaphoreV2(b, ROOT + "/sem", 1).acquire(1, TimeUnit.MILLISECONDS) != null));
        sem.returnLease(lease);
    }

    static void leaders(CuratorFramework a, CuratorFramework b) throws Exception {
        LeaderLatch first = new LeaderLatch(a, ROOT + "/latch", "first");
        LeaderLatch second = new LeaderLatch(b, ROOT + "/latch", "second");
        first.start();
        System.out.println("first leads " + first.await(WAIT, TimeUnit.SECONDS));
        second.start();
        await("two participants", () -> first.getParticipants().size() == 2);
        System.out.println("leader " + second.getLeader().getId());
        first.close();
        System.out.println("second leads " + second.await(WAIT, TimeUnit.SECONDS));
        second.close();
    }

    static void caches(CuratorFramework a, CuratorFramework b) throws Exception {
        CuratorCache cache = CuratorCache.build(a, ROOT + "/cache");
        CountDownLatch ready = new CountDownLatch(1);
        cache.listenable().addListener(org.apache.curator.framework.recipes.cache.CuratorCacheListener.builder()
            .forInitialized(ready::countDown).build());
        b.create().creatingParentsIfNeeded().forPath(ROOT + "/cache/one", bytes("1"));
        cache.start();
        System.out.println("cache " + ready.await(WAIT, TimeUnit.SECONDS));
        b.create().forPath(ROOT + "/cache/two", bytes("2"));
        await("two is cached", () -> cache.get(ROOT + "/cache/two").isPresent());
        b.setData().forPath(ROOT + "/cache/one", bytes("new"));
        await("one is new", () -> "new".equals(cache.get(ROOT + "/cache/one").map(d -> new String(d.getData())).orElse("")));
        b.delete().forPath(ROOT + "/cache/two");
        await("two is gone", () -> !cache.get(ROOT + "/cache/two").isPresent());
        b.create().creatingParentsIfNeeded().forPath(ROOT + "/cache/deep/er", bytes("3"));
        await("deep is cached", () -> cache.get(ROOT + "/cache/deep/er").isPresent());
        await("four are cached", () -> cache.size() == 4);
        cache.close();
    }

    static void others(CuratorFramework a, CuratorFramework b) throws Exception {
        SharedCount count = new SharedCount(a, ROOT + "/count", 3);
        count.start();
        count.setCount(5);
        SharedCount again = new SharedCount(b, ROOT + "/count", 0);
        again.start();
        await("the count is shared", () -> again.getCount() == 5);
        again.close();
        count.close();
        DistributedAtomicLong atomic = new DistributedAtomicLong(a, ROOT + "/atomic", new RetryOneTime(10));
        System.out.println("atomic " + atomic.add(7L).postValue() + " " + atomic.subtract(2L).postValue());
        SimpleDistributedQueue queue = new SimpleDistributedQueue(a, ROOT + "/queue");
        queue.offer(bytes("first"));
        queue.offer(bytes("second"));
        System.out.println("queue " + new String(queue.take()) + " " + new String(queue.poll(WAIT, TimeUnit.SECONDS)));
        DistributedBarrier barrier = new DistributedBarrier(a, ROOT + "/barrier");
        barrier.setBarrier();
        System.out.println("barrier " + barrier.waitOnBarrier(1, TimeUnit.MILLISECONDS));
        new DistributedBarrier(b, ROOT + "/barrier").removeBarrier();
        System.out.println("barrier " + barrier.waitOnBarrier(WAIT, TimeUnit.SECONDS));
        DistributedDoubleBarrier one = new DistributedDoubleBarrier(a, ROOT + "/double", 2);
        DistributedDoubleBarrier two = new DistributedDoubleBarrier(b, ROOT + "/double", 2);
        // Nobody leaves before both have entered.
        System.out.println("enter " + both(() -> one.enter(WAIT, TimeUnit.SECONDS), () -> two.enter(WAIT, TimeUnit.SECONDS)));
        System.out.println("leave " + both(() -> one.leave(WAIT, TimeUnit.SECONDS), () -> two.leave(WAIT, TimeUnit.SECONDS)));
        PersistentNode node = new PersistentNode(a, CreateMode.EPHEMERAL, false, ROOT + "/node", bytes("n"));
        node.start();
        System.out.println("persistent node " + node.waitForInitialCreate(WAIT, TimeUnit.SECONDS));
        b.delete().forPath(ROOT + "/node");
        await("the node is back", () -> b.checkExists().forPath(ROOT + "/node") != null);
        node.close();
        GroupMember member = new GroupMember(a, ROOT + "/group", "me", bytes("m"));
        member.start();
        await("the member is there", () -> member.getCurrentMembers().containsKey("me") && b.checkExists().forPath(ROOT + "/group/me") != null);
        member.close();
    }

    public static void main(String[] args) throws Exception {
        CuratorFramework a = client(args[0]);
        CuratorFramework b = client(args[0]);
        basics(a);
        locks(a, b);
        leaders(a, b);
        caches(a, b);
        others(a, b);
        b.close();
        a.delete().guaranteed().deletingChildrenIfNeeded().forPath(ROOT);
        System.out.println("cleaned " + (a.checkExists().forPath(ROOT) == null));
        a.close();
    }
}

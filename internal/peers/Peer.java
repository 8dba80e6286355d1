import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedIdQueue;
import org.apache.curator.framework.recipes.queue.MultiItem;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.recipes.leader.LeaderElectionSupport;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;
import org.apache.zookeeper.recipes.queue.DistributedQueue;

/** Uses Curator's and ZooKeeper's own recipes as told on standard input; see kazoo_peer.py; KIND may also be latch, selector, support, member, writelock. */
public class Peer {
  interface Release { void run() throws Exception; }

  static CuratorFramework client;
  static final Map<String, Release> held = new HashMap<>();

  static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  static FileChannel marked;
  static volatile boolean connected;
  static volatile boolean lost;

  /** Says that it holds, unless the files say that others do. */
  static synchronized void mark(String kind, String file, int permits) throws Exception {
    for (int i = 0; file != null && marked == null && i < permits; i++) {
      FileChannel f = FileChannel.open(Path.of(file + i), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
      FileLock lock = f.tryLock();
      if (lock == null) f.close(); else marked = f;
    }
    lost = false;
    say((file != null && marked == null && connected ? "VIOLATION " : "held ") + kind);
  }

  static synchronized void unmark() throws Exception {
    if (marked != null) marked.close();
    marked = null;
  }

  static void release(String kind) throws Exception {
    boolean late = lost;
    unmark();
    held.remove(kind).run();
    say((late ? "lost " : "released ") + kind);
  }

  static void acquire(String kind, String path, String file, int permits) throws Exception {
    switch (kind) {
      case "lock": {
        InterProcessMutex m = new InterProcessMutex(client, path);
        m.acquire();
        held.put(kind, m::release);
        break;
      }
      case "read":
      case "write": {
        InterProcessReadWriteLock rw = new InterProcessReadWriteLock(client, path);
        InterProcessMutex m = kind.equals("read") ? rw.readLock() : rw.writeLock();
        m.acquire();
        held.put(kind, m::release);
        break;
      }
      case "semaphore": {
        Lease lease = new InterProcessSemaphoreV2(client, path, permits).acquire();
        held.put(kind, lease::close);
        break;
      }
      case "latch": {
        LeaderLatch latch = new LeaderLatch(client, path, "curator");
        latch.start();
        latch.await();
        held.put(kind, latch::close);
        break;
      }
      case "selector": {
        CountDownLatch elected = new CountDownLatch(1);
        CountDownLatch release = new CountDownLatch(1);
        LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
          @Override public void takeLeadership(CuratorFramework c) throws Exception {
            elected.countDown();
            release.await();
          }
        });
        selector.start();
        elected.await();
        held.put(kind, () -> { release.countDown(); selector.close(); });
        break;
      }
      case "double": {
        DistributedDoubleBarrier b = new DistributedDoubleBarrier(client, path, 2);
        if (!b.enter(60, TimeUnit.SECONDS)) throw new IllegalStateException("nobody else came");
        held.put(kind, b::leave);
        break;
      }
      case "barrier": {
        new DistributedBarrier(client, path).waitOnBarrier();
        held.put(kind, () -> { });
        break;
      }
      case "member": {
        GroupMember m = new GroupMember(client, path, "curator");
        m.start();
        while (client.checkExists().forPath(path + "/curator") == null) Thread.sleep(10);
        held.put(kind, m::close);
        break;
      }
      case "support": {
        CountDownLatch elected = new CountDownLatch(1);
        if (client.checkExists().forPath(path) == null) client.create().creatingParentsIfNeeded().forPath(path);
        LeaderElectionSupport e = new LeaderElectionSupport();
        e.setZooKeeper(client.getZookeeperClient().getZooKeeper());
        e.setRootNodeName(path);
        e.setHostName("zookeeper");
        e.addListener(type -> {
          if (type == LeaderElectionSupport.EventType.ELECTED_COMPLETE) elected.countDown();
        });
        e.start();
        elected.await();
        held.put(kind, e::stop);
        break;
      }
      case "writelock": {
        CountDownLatch acquired = new CountDownLatch(1);
        WriteLock lock = new WriteLock(client.getZookeeperClient().getZooKeeper(), path, ZooDefs.Ids.OPEN_ACL_UNSAFE,
            new LockListener() {
              @Override public void lockAcquired() { acquired.countDown(); }
              @Override public void lockReleased() { }
            });
        lock.lock();
        acquired.await();
        held.put(kind, lock::unlock);
        break;
      }
      default:
        throw new IllegalArgumentException(kind);
    }
    mark(kind, file, permits);
  }

  static final QueueSerializer<String> TEXT = new QueueSerializer<String>() {
    @Override public byte[] serialize(String item) { return item.getBytes(); }
    @Override public String deserialize(byte[] bytes) { return new String(bytes); }
  };

  /** A consumer says what it takes. */
  static QueueBuilder<String> messages(String path, boolean consume) {
    QueueConsumer<String> consumer = new QueueConsumer<String>() {
      @Override public void consumeMessage(String message) { say("got " + message); }
      @Override public void stateChanged(CuratorFramework c, ConnectionState state) { }
    };
    return QueueBuilder.builder(client, consume ? consumer : null, TEXT, path).lockPath(path + "-taken");
  }

  /** Puts two messages into one znode. */
  static void putMulti(DistributedDelayQueue<String> q) throws Exception {
    q.putMulti(new MultiItem<String>() {
      int left = 2;
      @Override public String nextItem() { return left-- > 0 ? "multi" : null; }
    }, System.currentTimeMillis());
  }

  static void put(String kind, String path, String body) throws Exception {
    if (kind.equals("id")) {
      DistributedIdQueue<String> q = messages(path, false).buildIdQueue();
      q.start();
      q.put(body, "id/" + body);
      q.flushPuts(10, TimeUnit.SECONDS);
      q.close();
    } else if (kind.equals("delay")) {
      DistributedDelayQueue<String> q = messages(path, false).buildDelayQueue();
      q.start();
      if (body.equals("multi")) putMulti(q);
      else q.put(body, System.currentTimeMillis() + (body.equals("late") ? 3600000 : 300));
      q.flushPuts(10, TimeUnit.SECONDS);
      q.close();
    } else if (kind.equals("simple")) {
      new SimpleDistributedQueue(client, path).offer(body.getBytes());
    } else {
      new DistributedQueue(client.getZookeeperClient().getZooKeeper(), path, ZooDefs.Ids.OPEN_ACL_UNSAFE).offer(body.getBytes());
    }
    say("put");
  }

  /** Takes messages until it is released. */
  static void consume(String kind, String path) throws Exception {
    if (kind.equals("id")) {
      DistributedIdQueue<String> q = messages(path, true).buildIdQueue();
      q.start();
      held.put(kind, q::close);
    } else {
      DistributedDelayQueue<String> q = messages(path, true).buildDelayQueue();
      q.start();
      held.put(kind, q::close);
    }
    say("consumes");
  }

  /** Removes the items of an id. */
  static void remove(String path, String id) throws Exception {
    DistributedIdQueue<String> q = messages(path, false).buildIdQueue();
    q.start();
    say("removed " + q.remove(id));
    q.close();
  }

  static void get(String kind, String path) throws Exception {
    byte[] body = kind.equals("simple")
        ? new SimpleDistributedQueue(client, path).poll()
        : new DistributedQueue(client.getZookeeperClient().getZooKeeper(), path, ZooDefs.Ids.OPEN_ACL_UNSAFE).poll();
    say("got " + (body == null ? "" : new String(body)));
  }

  /** Adds to a counter and says its new value. */
  static void count(String kind, String path, int delta) throws Exception {
    long value;
    if (kind.equals("shared")) {
      SharedCount c = new SharedCount(client, path, 0);
      c.start();
      value = c.getVersionedValue().getValue() + delta;
      if (!c.trySetCount(c.getVersionedValue(), (int) value)) throw new IllegalStateException("another was first");
      c.close();
    } else {
      value = new DistributedAtomicLong(client, path, new RetryNTimes(5, 100)).add((long) delta).postValue();
    }
    say("count " + value);
  }

  /** Closes or opens a barrier. */
  static void gate(String how, String path) throws Exception {
    DistributedBarrier b = new DistributedBarrier(client, path);
    if (how.equals("close")) b.setBarrier(); else b.removeBarrier();
    say("gate " + how);
  }

  static CuratorFramework connect(String addr) throws Exception {
    CuratorFramework c = CuratorFrameworkFactory.newClient(addr, 20000, 60000, new ExponentialBackoffRetry(1000, 5));
    c.start();
    c.blockUntilConnected(60, TimeUnit.SECONDS);
    return c;
  }

  static void locked(CuratorFramework c, String path, int n) {
    try {
      InterProcessMutex m = new InterProcessMutex(c, path);
      for (int i = 0; i < n; i++) {
        m.acquire();
        m.release();
      }
    } catch (Exception e) {
      throw new RuntimeException(e);
    }
  }

  /** 50 contenders, each with a session of its own. */
  static long contended(String addr, String path, int n) throws Exception {
    CuratorFramework[] clients = new CuratorFramework[50];
    Thread[] threads = new Thread[clients.length];
    for (int i = 0; i < clients.length; i++) {
      CuratorFramework c = clients[i] = connect(addr);
      threads[i] = new Thread(() -> locked(c, path, n / clients.length));
    }
    long began = System.nanoTime();
    for (Thread t : threads) t.start();
    for (Thread t : threads) t.join();
    long took = System.nanoTime() - began;
    for (CuratorFramework c : clients) c.close();
    return took;
  }

  static long bench(String addr, String what, String path, int n) throws Exception {
    if (what.equals("contended")) return contended(addr, path, n);
    SimpleDistributedQueue q = new SimpleDistributedQueue(client, path);
    byte[] body = new byte[100];
    for (int i = 0; what.equals("take") && i < n; i++) q.offer(body);
    long began = System.nanoTime();
    if (what.equals("lock")) locked(client, path, n);
    for (int i = 0; what.equals("put") && i < n; i++) q.offer(body);
    for (int i = 0; what.equals("take") && i < n; i++) q.poll();
    return System.nanoTime() - began;
  }

  static void order(String addr, String[] words) throws Exception {
    switch (words[0]) {
      case "acquire":
        acquire(words[1], words[2], words.length > 3 ? words[3] : null, words.length > 4 ? Integer.parseInt(words[4]) : 1);
        break;
      case "release": release(words[1]); break;
      case "consume": consume(words[1], words[2]); break;
      case "remove": remove(words[1], words[2]); break;
      case "put": put(words[1], words[2], words[3]); break;
      case "get": get(words[1], words[2]); break;
      case "count": count(words[1], words[2], Integer.parseInt(words[3])); break;
      case "gate": gate(words[1], words[2]); break;
      case "bench":
        say("took " + bench(addr, words[1], words[2], Integer.parseInt(words[3])) / 1e9);
        break;
      default: throw new IllegalArgumentException(words[0]);
    }
  }

  /** Connects in a session that ends marks when it is suspended, as Curator's recipes ask. */
  static void open(String addr) throws Exception {
    client = connect(addr);
    connected = true;
    client.getConnectionStateListenable().addListener((c, state) -> {
      connected = state.isConnected();
      try {
        lost = lost || state == ConnectionState.LOST || !connected && marked != null;
        if (!connected) unmark();
      } catch (Exception e) {
        e.printStackTrace();
      }
    });
  }

  public static void main(String[] args) throws Exception {
    open(args[0]);
    say("ready");
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = in.readLine()) != null; ) {
      String[] words = line.trim().split(" ");
      try {
        order(args[0], words);
      } catch (Exception e) {
        e.printStackTrace();
        unmark();
        client.close();
        open(args[0]);
        say("failed " + words[1]);
      }
    }
    client.close();
    System.exit(0);
  }
}

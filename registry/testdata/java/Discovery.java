import java.util.HashMap;
import java.util.Map;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.x.discovery.ServiceDiscovery;
import org.apache.curator.x.discovery.ServiceDiscoveryBuilder;
import org.apache.curator.x.discovery.ServiceInstance;
import org.apache.curator.x.discovery.UriSpec;
import org.apache.curator.x.discovery.details.JsonInstanceSerializer;

/** Lists a service, registers an instance beside it, and leaves when standard input ends. */
public class Discovery {
    public static class Meta {
        public String id;
        public String name;
        public Map<String, String> metadata = new HashMap<>();
    }

    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 60000, 60000, new RetryOneTime(1000));
        client.start();
        client.blockUntilConnected();
        Meta meta = new Meta();
        meta.id = "application-1";
        meta.name = args[2];
        meta.metadata.put("instance_status", "UP");
        ServiceInstance<Meta> own = ServiceInstance.<Meta>builder().name(args[2]).id("theirs").address("127.0.0.1").port(2)
            .sslPort(444).payload(meta).uriSpec(new UriSpec("{scheme}://{address}:{port}")).build();
        ServiceDiscovery<Meta> discovery = ServiceDiscoveryBuilder.builder(Meta.class).client(client).basePath(args[1])
            .serializer(new JsonInstanceSerializer<>(Meta.class)).build();
        discovery.start();
        for (ServiceInstance<Meta> i : discovery.queryForInstances(args[2])) {
            Map<String, Object> plain = new HashMap<>();
            plain.put("scheme", "http");
            System.out.println("found " + i.getId() + " " + i.getAddress() + ":" + i.getPort() + " ssl " + i.getSslPort()
                + " payload " + i.getPayload().id + " " + i.getPayload().metadata + " uri " + i.buildUriSpec(plain) + " enabled " + i.isEnabled());
        }
        discovery.registerService(own);
        System.out.println("ready");
        while (System.in.read() >= 0) {
        }
        discovery.close();
        client.close();
        System.exit(0);
    }
}
